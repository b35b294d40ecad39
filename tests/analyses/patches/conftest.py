"""Made-up scenes for a tiny segmenter are shared with other folders of tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # segmented_scenes
