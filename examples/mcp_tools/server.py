"""An MCP server with one tool."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

CAPITALS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima"}

server = MCPServer("capitals")


@server.tool()
def capital(country: str) -> str:
    """The capital of a country."""
    return CAPITALS.get(country, "unknown")


if __name__ == "__main__":
    server.run("stdio")
