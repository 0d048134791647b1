"""A video as frames: pictures in a list, an animated picture, or a file that a decoder reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.errors import FileError, OptionError, class_name, first_line
from attnscope.models.tokenize import open_picture
from attnscope.process.devices import check_memory
from attnscope.process.files import refuse_pipe

if TYPE_CHECKING:
    from PIL.Image import Image


T = TypeVar("T")

BYTES = 7
"""Bytes for each pixel of a frame: 4 of pillow's, and 3 in the array for the processor."""


@dataclass
class Video:
    """A video that was read.

    Attributes:
        frames: all its frames, or those that were selected, RGB.
        fps: how many of these a second has; None: not known.
        numbers: the number of each in the whole video, from 1.
        shown: the indices of the frames that the model reads, known once its processor was called.
    """

    frames: list[Image] = field(repr=False)
    fps: float | None = None
    numbers: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = self.numbers or [*range(1, len(self.frames) + 1)]

    def metadata(self) -> dict[str, Any]:
        """Return what processors of transformers want to know of a video."""
        n_frame = len(self.frames)
        return {
            "total_num_frames": n_frame,
            "fps": self.fps,
            "duration": None if self.fps is None else n_frame / self.fps,
            "frames_indices": list(range(n_frame)),
        }


def open_video(video: Any, fps: float | None = None) -> Video:
    """Read a video.

    Args:
        video: a list of pictures, files or images of pillow; an array, `n_frame height width 3`, of
            numbers to 255; or a file: an animated .gif, .png or .webp, or what PyAV can decode. One
            that was read before stays as it is.
        fps: how many frames of each second are read, the first one of each 1 / fps seconds; None: all.

    Raises:
        FileError: a file cannot be read.
        SizeError: its frames do not fit into the memory.
        OptionError: it is neither of these, or has no frames, or frames of several sizes; or `fps` is
            given, and it does not say how many frames a second has.
    """
    if isinstance(video, Video):
        return video
    if isinstance(video, (str, Path)):
        read = _of_file(Path(video), fps)
    elif fps is not None:
        raise _without_rate("a video of single frames")
    elif hasattr(video, "shape"):
        from PIL import Image

        read = Video([Image.fromarray(frame).convert("RGB") for frame in video])
    elif isinstance(video, (list, tuple)):
        read = Video([open_picture(frame) for frame in video])
    else:
        raise OptionError(
            f"a video is a file, an array or a list of frames, but this is a {class_name(video)}.",
            hint="video=[[frame, …]]",
        )
    sizes = sorted({frame.size for frame in read.frames})
    if len(sizes) != 1:
        has = "no frames" if not sizes else "frames of several sizes: "
        listed = ", ".join(f"{width}×{height}" for width, height in sizes[:3])
        raise OptionError(f"a video has {has}{listed}.", hint="frames of one size")
    return read


def _without_rate(video: str) -> OptionError:
    return OptionError(
        f"--fps selects frames of a second, and {video} does not say how many a second has.",
        hint="no --fps",
    )


def _selected(
    frames: Iterable[T], own: float | None, fps: float | None, name: str
) -> Iterator[tuple[int, T]]:
    """Yield the first frame of each 1 / fps seconds, with its number, from 1.

    Args:
        frames: all frames.
        own: how many of them a second has; None: not known.
        fps: how many are selected; None: all.
        name: the video's name, for errors.
    """
    if fps is not None and own is None:
        raise _without_rate(name)
    share = 1.0 if fps is None or own is None else min(1.0, fps / own)
    for i, frame in enumerate(frames):
        if int(i * share + 1e-9) > int((i - 1) * share + 1e-9) or i == 0:
            yield i + 1, frame


def _of_file(path: Path, fps: float | None) -> Video:
    """Read a file: with pillow if it is an animated picture, or else with PyAV."""
    from PIL import Image, ImageSequence, UnidentifiedImageError

    refuse_pipe(path)
    try:
        with Image.open(path) as opened:
            milliseconds = opened.info.get("duration")
            own = 1000 / milliseconds if milliseconds else None
            selected = _selected(ImageSequence.Iterator(opened), own, fps, str(path))
            numbered = [(number, frame.convert("RGB")) for number, frame in selected]
            return _video(numbered, _least(own, fps))
    except UnidentifiedImageError:
        return _decoded(path, fps)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or first_line(error)}.") from error


def _video(numbered: list[tuple[int, Image]], fps: float | None) -> Video:
    """Return the video of frames with their numbers."""
    return Video([frame for _, frame in numbered], fps, [number for number, _ in numbered])


def _least(own: float | None, fps: float | None) -> float | None:
    """Return how many frames a second has after selection; None: not known."""
    return own if own is None or fps is None else min(own, fps)


def _decoded(path: Path, fps: float | None) -> Video:
    """Decode a file with FFmpeg's decoders in PyAV, whether or not it says how many frames it has."""
    try:
        import av
    except ImportError as error:
        raise FileError(
            f"{path} needs PyAV, which decodes videos and is not installed here.",
            hint="pip install 'attnscope[video]'; or a .gif file",
        ) from error
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise FileError(f"{path} has no video in it.")
            stream = container.streams.video[0]
            own = float(stream.average_rate) if stream.average_rate else None
            n_frame = stream.frames or (container.duration or 0) / av.time_base * (own or 0)
            n_frame *= (_least(own, fps) or 1) / (own or 1)
            needed = round(n_frame) * stream.width * stream.height * BYTES
            check_memory(needed, "cpu", "a shorter video, or a smaller one; or --fps 1")
            selected = _selected(container.decode(stream), own, fps, str(path))
            numbered = [(number, frame.to_image()) for number, frame in selected]
            return _video(numbered, _least(own, fps))
    except av.FFmpegError as error:
        raise FileError(f"{path} cannot be decoded as a video: {first_line(error)}.") from error
