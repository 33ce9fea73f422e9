"""The operations of a mixture's experts: routing, dispatch, matrices."""
