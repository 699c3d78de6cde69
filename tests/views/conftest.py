"""The fault kit's fixtures: children that never outlive their test, a folder in memory, the disk shim."""

from tests.faults.conftest import children, memory, shim

__all__ = ["children", "memory", "shim"]
