"""Programs that show statebed at work; none is part of the package."""
