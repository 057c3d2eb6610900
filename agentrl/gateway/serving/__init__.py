"""The gateway's HTTP server. In the gateway, only this folder imports aiohttp."""
