"""Event sourcing: entities whose state is a fold of their events, and commands that are validated against it.

    from headrace import sourcing as es

Owns the public names. `entities.py` handles commands, `commanded.py` sends them to `handler.py` where a log appends on
no condition. `boundary.py` appends on conditions wider than one entity, `processes.py` sends commands for what has
happened, `events.py` and `columns.py` make events typed columns, `snapshots.py` keeps states."""

from headrace.errors import BoundaryConflict as BoundaryConflict
from headrace.errors import CommandFailed as CommandFailed
from headrace.errors import CommandTimeout as CommandTimeout
from headrace.errors import Rejected as Rejected
from headrace.errors import VersionConflict as VersionConflict
from headrace.sourcing.boundary import Boundary as Boundary
from headrace.sourcing.boundary import Query as Query
from headrace.sourcing.boundary import append as append
from headrace.sourcing.boundary import boundary as boundary
from headrace.sourcing.boundary import erase as erase
from headrace.sourcing.boundary import query as query
from headrace.sourcing.boundary import read as read
from headrace.sourcing.boundary import tagged as tagged
from headrace.sourcing.commanded import CommandedEntities as _CommandedEntities  # noqa: F401  where a log needs it
from headrace.sourcing.entities import Entities as Entities
from headrace.sourcing.processes import ProcessManager as ProcessManager
from headrace.sourcing.reactions import Action as Action
from headrace.sourcing.reactions import Cancel as Cancel
from headrace.sourcing.reactions import CommandAccepted as CommandAccepted
from headrace.sourcing.reactions import CommandRejected as CommandRejected
from headrace.sourcing.reactions import PendingTimer as PendingTimer
from headrace.sourcing.reactions import Send as Send
from headrace.sourcing.reactions import Timer as Timer
from headrace.sourcing.reactions import TimerFired as TimerFired
from headrace.sourcing.results import Difference as Difference
from headrace.sourcing.results import EntityAudit as EntityAudit
from headrace.sourcing.results import Event as Event
from headrace.sourcing.results import Handled as Handled
from headrace.sourcing.results import Loaded as Loaded
