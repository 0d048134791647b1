"""Build a model's inputs: from a text, a file, token ids, or an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError
from attnscope.model.run.options import ReadOptions

if TYPE_CHECKING:
    from attnscope.model.files.checkpoint import Checkpoint
    from attnscope.model.run.tokenize import Reading


def read_inputs(inputs: ReadOptions, checkpoint: Checkpoint, config: Any) -> Reading:
    """Build the inputs of a model that the options name."""
    from attnscope.model.run.text_file import text_of_file
    from attnscope.model.run.tokenize import check_reads, max_tokens, read_image, read_text

    check_reads(checkpoint, config, "text" if inputs.image is None else "image")
    if inputs.image is not None:
        images = inputs.image if isinstance(inputs.image, list) else [inputs.image]
        if len(images) != 1:
            raise OptionError(
                f"a vision model reads one picture, and here are {len(images)}.",
                hint='--image A.png --image B.png --text "…", for a model that answers',
            )
        return read_image(checkpoint, config, images[0])
    if inputs.target is not None and not config.is_encoder_decoder:
        raise OptionError(
            f"--target is for encoder-decoder models, and {checkpoint.name} ({config.model_type})"
            " is not one.",
            hint='--text "…" --pair "…"',
        )
    options: dict[str, Any] = {"target": inputs.target, "truncate": inputs.truncate}
    if inputs.ids is not None or inputs.tokens is not None:
        from attnscope.model.run.token_ids import read_ids

        return read_ids(checkpoint, config, inputs.ids, inputs.tokens, **options)
    text, name = inputs.text or "", "--text"
    if inputs.file is not None:
        text = text_of_file(Path(inputs.file), max_tokens(config), truncate=inputs.truncate)
        name = f"--file {inputs.file}"
    return read_text(checkpoint, config, text, name=name, pair=inputs.pair, **options)
