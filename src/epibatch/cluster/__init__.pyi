from .actor_group import ActorGroup as ActorGroup, Answer as Answer
from .connection import connect as connect, node_address as node_address
from .pickling import check_picklable as check_picklable
from .registered import Registrations as Registrations, registrations as registrations
