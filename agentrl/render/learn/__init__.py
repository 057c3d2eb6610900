"""What a template does, found by rendering messages whose words are found again."""
