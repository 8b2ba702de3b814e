"""The background processes that train and draw: what they are told, what they tell, and who watches them."""
