"""The pictures of the class-space lens: one panel per question. They read tables only."""
