"""Simic: how the controller learns. Recurrent PPO over factored, conditionally masked actions."""
