"""Programs that run inside a sandbox, with the sandbox's Python (3.8 or later). The programs import no module of this
package."""
