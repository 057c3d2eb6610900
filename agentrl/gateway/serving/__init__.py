"""The gateway's HTTP side. Only this folder and the wires import aiohttp."""
