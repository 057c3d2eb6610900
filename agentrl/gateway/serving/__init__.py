"""The gateway's HTTP server. Only this folder of the gateway imports aiohttp."""
