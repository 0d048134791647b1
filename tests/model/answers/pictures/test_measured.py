"""Which area a processor shows is measured in pictures of every shape, also of one pixel."""

import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

from attnscope.model.answers.pictures.processed import ProcessorPart, shows

SIDE = 84
SIZES = [(300, 90), (100, 750), (160, 120), (37, 50), (1, 60), (60, 1), (1000, 37), (84, 84)]


def part(processor):
    return ProcessorPart(processor, arguments={"return_tensors": "pt"})


def cropped(size):
    """The middle square of a picture, in its pixels, as CLIP crops it after it was resized."""
    width, height = size
    short = min(size)
    resized = (int(SIDE * width / short), int(SIDE * height / short))
    x, y = width / resized[0], height / resized[1]
    left, top = (resized[0] - SIDE) // 2 * x, (resized[1] - SIDE) // 2 * y
    return (left, top, left + SIDE * x, top + SIDE * y)


@pytest.mark.parametrize("size", SIZES)
def test_the_area_that_is_cropped_is_shown(size):
    crop = {"height": SIDE, "width": SIDE}
    processor = part(CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop))
    left, top, right, bottom = cropped(size)
    assert shows(processor, size, (left, top, right, bottom), (SIDE, SIDE))
    moved = 3 + 0.1 * (right - left)
    assert not shows(processor, size, (left + moved, top, right + moved, bottom), (SIDE, SIDE))
    if max(size) > 2 * min(size):
        assert not shows(processor, size, (0.0, 0.0, *map(float, size)), (SIDE, SIDE))


@pytest.mark.parametrize("size", SIZES)
def test_the_whole_that_is_squeezed_is_shown(size):
    processor = part(SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE}))
    width, height = size
    assert shows(processor, size, (0.0, 0.0, width, height), (SIDE, SIDE))
    if width > 20:
        assert not shows(processor, size, (0.1 * width, 0.0, width, height), (SIDE, SIDE))


def test_a_processor_that_mirrors_pictures_is_not_taken_for_one_that_does_not():
    class Mirrors(SiglipImageProcessorPil):
        def __call__(self, images, **options):
            mirrored = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in images]
            return super().__call__(mirrored, **options)

    size = (60, 40)
    assert not shows(
        part(Mirrors(size={"height": SIDE, "width": SIDE})), size, (0.0, 0.0, 60.0, 40.0), (SIDE, SIDE)
    )
