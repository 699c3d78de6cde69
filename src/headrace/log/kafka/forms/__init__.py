"""The forms that values of topics have besides JSON, and which topic has which."""
