"""Messages carried by NVIDIA FLARE: its server's and its sites' jobs are the two ends of a relay.

| file          | who runs it      | what it does                                                  |
|---------------|------------------|---------------------------------------------------------------|
| `job`         | FLARE, on a site | the two ends, as FLARE's jobs load them by name               |
| `site`        | a site's owner   | its socket, which classes jobs may load, and how it signs     |
| `keeping`     | an admin         | submits the job, and again whenever it ended or a site is new |
| `development` | a developer      | a project with mutual TLS on one machine, gone at the end     |

A job is configuration and holds no code. The two classes that it names are installed at each site,
which allows no other classes. The engine is imported only where it is used: `make nvflare`
brings it.
"""

from platform.relay.nvflare.development import nvflare_poc

__all__ = ["nvflare_poc"]
