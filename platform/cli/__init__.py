"""The command lines: what each command does, prints, and raises.

Every command raises `ConfigError` for bad input, `UnknownRun` if there is no such run or database,
and `RunStopped`, `AuditChainBroken` or another `StorageError` if records do not agree or cannot be
read or written. Nothing is printed or written then, unless a command says otherwise.
"""
