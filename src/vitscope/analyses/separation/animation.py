"""A training as a moving picture: GIF always, MP4 and WebM where an encoder is found."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vitscope.errors import RunError
from vitscope.runs import atomic_write

FRAME_MS, LAST_MS = 400, 2500  # the finished training stays for a while
VIDEOS = {
    "mp4": ["-c:v", "libx264", "-movflags", "+faststart"],
    "webm": ["-c:v", "libvpx-vp9", "-b:v", "0", "-crf", "32"],
}


def encoder() -> str | None:
    """ffmpeg: the system's, or the one that comes with imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            import imageio_ffmpeg

            found = imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            return None
    return found


def frame(path: Path) -> Image.Image:
    """A figure on disk at half its size: as large as a film wants it, and drawn once."""
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
    return whole.resize((whole.width // 2, whole.height // 2), Image.Resampling.LANCZOS)


def write_gif(path: Path, frames: Sequence[Image.Image]) -> Path:
    """One palette for all frames (that of the last), so that colours do not flicker."""
    palette = frames[-1].quantize(64, method=Image.Quantize.MEDIANCUT)
    reduced = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    buffer = io.BytesIO()
    reduced[0].save(buffer, "GIF", save_all=True, append_images=reduced[1:], duration=times, loop=0, optimize=True)
    return atomic_write(path, buffer.getvalue())


def write_videos(stem: Path, frames: Sequence[Image.Image], ffmpeg: str) -> list[Path]:
    """STEM.mp4 and STEM.webm, whichever the encoder can write."""
    width, height = (2 * (side // 2) for side in frames[0].size)  # 4:2:0 wants even sides
    rate = 1000 / FRAME_MS
    still = round(LAST_MS / FRAME_MS)
    data = b"".join(frame.crop((0, 0, width, height)).tobytes() for frame in [*frames, *[frames[-1]] * still])
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{rate:g}", "-i", "-"]
    written = []
    for kind, options in VIDEOS.items():
        path = stem.with_suffix(f".{kind}")
        temporary = path.with_name(f".{path.stem}.part.{kind}")
        command = [ffmpeg, "-loglevel", "error", "-y", *source, *options, "-pix_fmt", "yuv420p", str(temporary)]
        try:
            done = subprocess.run(command, input=data, capture_output=True, check=False)
            if done.returncode == 0:
                written.append(temporary.replace(path))
        except OSError as error:
            raise RunError(f"The encoder {ffmpeg} cannot be used: {error}.") from error
        finally:
            temporary.unlink(missing_ok=True)
    return written
