"""A video as frames: pictures in a list, an animated picture, or a file that a decoder reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, OptionError, class_name, first_line
from attnscope.base.process.devices import check_memory
from attnscope.base.process.files import refuse_pipe
from attnscope.base.spelling import spelled
from attnscope.model.run.pictures import as_file_error, open_picture, opened_image

if TYPE_CHECKING:
    from PIL.Image import Image


BYTES = 7  #: Bytes for each pixel of a frame: 4 of pillow's, and 3 in the array for the processor


def fewer_frames() -> str:
    """Return the hint for a video that is too large."""
    return f"a shorter video, or a smaller one; or {spelled(fps=1)}"


@dataclass
class Video:
    """A video that was read."""

    frames: list[Image] = field(repr=False)  #: all its frames, or those that were selected, RGB
    fps: float | None = None  #: how many of these a second has; None: not known
    numbers: list[int] = field(default_factory=list)  #: the number of each in the whole video, from 1
    #: the indices of the frames that the model reads, known once its processor was called
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
    """Read a video; one that was read before stays as it is.

    It is a list of pictures, files or images of pillow; an array, `n_frame height width 3`, of numbers
    to 255; or a file: an animated .gif, .png or .webp, or what PyAV can decode. With `fps`, the first
    frame of each 1 / fps seconds is read.
    """
    if isinstance(video, Video):
        return video
    if isinstance(video, (str, Path)):
        read = _of_file(Path(video), fps)
    elif fps is not None:
        raise _without_rate("a video of single frames")
    elif hasattr(video, "shape"):
        read = Video(_of_array(video))
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


def _of_array(video: Any) -> list[Image]:
    """Return the frames of an array, `n_frame height width 3`, of whole numbers to 255."""
    import numpy as np
    from PIL import Image

    values = np.asarray(video)
    is_whole = np.issubdtype(values.dtype, np.integer)
    if values.ndim != 4 or values.shape[-1] != 3 or not values.size or not is_whole:
        raise OptionError(
            f"the array of a video is {values.dtype.name}, of the shape {values.shape}.",
            hint="n_frame height width 3, of whole numbers from 0 to 255",
        )
    if values.min() < 0 or values.max() > 255:
        raise OptionError(
            f"the array of a video has numbers from {values.min()} to {values.max()}.",
            hint="whole numbers from 0 to 255",
        )
    return [Image.fromarray(frame) for frame in values.astype(np.uint8)]


def _without_rate(video: str) -> OptionError:
    return OptionError(
        f"{spelled('fps')} selects frames of a second, and {video} does not say how many a second has.",
        hint=f"no {spelled('fps')}",
    )


def _share(own: float | None, fps: float | None, name: str) -> tuple[float, float | None]:
    """Return the share of a video's frames that are read, and how many of these a second has.

    Of `own` frames a second, `fps` are read; None: not known, and all.
    """
    if fps is None:
        return 1.0, own
    if own is None:
        raise _without_rate(name)
    return min(1.0, fps / own), min(own, fps)


def _read(
    frames: Iterable[Any], image_of: Callable[[Any], Image], share: float, fps: float | None
) -> Video:
    """Read a share of frames, evenly and with the first one."""
    numbered = [
        (i + 1, image_of(frame))
        for i, frame in enumerate(frames)
        if i == 0 or int(i * share + 1e-9) > int((i - 1) * share + 1e-9)
    ]
    return Video([image for _, image in numbered], fps, [number for number, _ in numbered])


def _of_file(path: Path, fps: float | None) -> Video:
    """Read a file: with pillow if it is an animated picture, or else with PyAV."""
    from PIL import ImageSequence, UnidentifiedImageError

    refuse_pipe(path)
    with as_file_error(str(path)):
        try:
            with opened_image(path, str(path)) as opened:
                milliseconds = opened.info.get("duration")
                own = 1000 / milliseconds if milliseconds else None
                share, read_fps = _share(own, fps, str(path))
                width, height = opened.size
                needed = round(getattr(opened, "n_frames", 1) * share) * width * height * BYTES
                check_memory(needed, "cpu", fewer_frames())
                frames = ImageSequence.Iterator(opened)
                return _read(frames, lambda frame: frame.convert("RGB"), share, read_fps)
        except UnidentifiedImageError:
            return _decoded(path, fps)


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
            share, read_fps = _share(own, fps, str(path))
            needed = round(n_frame * share) * stream.width * stream.height * BYTES
            check_memory(needed, "cpu", fewer_frames())
            return _read(container.decode(stream), lambda frame: frame.to_image(), share, read_fps)
    except av.FFmpegError as error:
        raise FileError(f"{path} cannot be decoded as a video: {first_line(error)}.") from error
