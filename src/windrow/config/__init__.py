"""Reading a configuration: a YAML file and `section.key=value` overrides become one typed model.

Promises:
- a model is a `msgspec.Struct`; nested Structs are its sections, `Annotated[…, Meta(…)]` holds bounds and the
  line of description; mappings of names to Structs, lists and unions tagged by a field work too;
- every setting is known, given once, of its type and within its bounds, or `ConfigError` says in one line
  where it was set, which it is, what it was and what would work;
- the value is never half-read, and where each of its settings came from is known.

Models live with the parts they configure, not here.
"""

from windrow.config.build import Loaded, load
from windrow.config.settings import Setting, describe
from windrow.config.source import top_keys, top_value

__all__ = ["Loaded", "Setting", "describe", "load", "top_keys", "top_value"]
