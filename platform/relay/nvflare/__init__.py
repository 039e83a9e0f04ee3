"""Relays through NVIDIA FLARE: jobs at FLARE's server and at its sites are the relay's two ends.

| file          | who runs it      | what it does                                                  |
|---------------|------------------|---------------------------------------------------------------|
| `job`         | FLARE, on a site | the two ends, which FLARE's jobs load by name                 |
| `site`        | a site's owner   | sets the socket, the classes that jobs may load, and signs    |
| `keeping`     | an admin         | submits the job again whenever it ends or a new site connects |
| `development` | a developer      | a project with mutual TLS on one machine, gone at the end     |

A job is configuration and holds no code. The two classes that it names are installed at each site,
and each site allows only these classes. Only code that uses FLARE imports it; `make nvflare`
installs it.
"""

from platform.relay.nvflare.development import nvflare_poc

__all__ = ["nvflare_poc"]
