"""Export: a grown network as a plain one that knows nothing of growth."""

from esper.kasmina.export.emit import emit_source
from esper.kasmina.export.fold import Folded, fold

__all__ = ["Folded", "emit_source", "fold"]
