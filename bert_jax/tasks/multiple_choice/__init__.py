"""Questions with several choices, such as SWAG."""
