"""`python -m playvirtual` is the same as `playvirtual`."""

import sys

from playvirtual.cli.main import main

sys.exit(main())
