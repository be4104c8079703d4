"""The `place` fixture: a row that takes it runs on one simulated device and over several."""

import pytest

from .common import DEVICES, Place


@pytest.fixture(params=DEVICES)
def place(request):
    return Place(request.param)
