"""Tests of the programs under results/ and of what lies there."""
