"""The modules of SGLang that slime imports."""
