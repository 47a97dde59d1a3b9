"""Pixel arithmetic, worked out by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.envs.image import channels_first, enlarge, resize_area, to_gray


def test_area_means_over_whole_pixels():
    image = np.array([[0, 10, 100, 110], [20, 30, 120, 130], [1, 1, 2, 2], [1, 1, 2, 2]], np.uint8)[..., None]
    assert resize_area(image, 2)[..., 0].tolist() == [[15, 115], [1, 2]]


def test_an_image_that_is_no_square():
    """Two rows stay, and each new pixel is the mean of three columns."""
    image = np.array([[0, 30, 60, 90, 120, 150], [1, 2, 3, 40, 50, 60]], np.uint8)
    assert resize_area(image[..., None], 2)[..., 0].tolist() == [[30, 120], [2, 50]]
    assert resize_area(image.T[..., None], 2)[..., 0].tolist() == [[30, 2], [120, 50]]


def test_area_means_over_shared_pixels():
    # Three pixels to two: each new one covers one and a half old ones.
    image = np.tile(np.array([30, 60, 120], np.uint8), (3, 1))[..., None]
    assert resize_area(image, 2)[..., 0].tolist() == [[40, 100], [40, 100]]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(0, 255))
def test_a_flat_image_stays_flat(height, width, size, value):
    resized = resize_area(np.full((height, width, 3), value, np.uint8), size)
    assert resized.shape == (size, size, 3)
    assert (resized == value).all()


def test_gray_is_luma():
    colors = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]], np.uint8)
    assert to_gray(colors)[0, :, 0].tolist() == [76, 150, 29, 9]


def test_enlarge_repeats_pixels_in_three_channels():
    assert enlarge(np.array([[[7], [8]]], np.uint8), 2)[..., 1].tolist() == [[7, 7, 8, 8], [7, 7, 8, 8]]
    assert enlarge(np.zeros((4, 5, 1), np.uint8), 3).shape == (12, 15, 3)


def test_rows_stay_rows_when_an_image_is_not_square():
    image = np.array([[0, 20, 100, 120], [40, 60, 140, 160]], np.uint8)[..., None]
    assert resize_area(image, 2)[..., 0].tolist() == [[10, 110], [50, 150]]


def test_channels_come_first_and_rows_before_columns():
    image = np.arange(2 * 3 * 2, dtype=np.uint8).reshape(2, 3, 2)
    first = channels_first(image)
    assert first.tolist() == [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]]
    assert first.flags.c_contiguous
