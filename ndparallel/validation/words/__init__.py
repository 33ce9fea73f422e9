"""The words of measured runs, in all their usual spellings, read into our names.

Idea   Sources write the same thing in many ways. Each function reads one field and says what it is in our
       names.
Limit  A word that is not known here stands for what is said nowhere: see the rules in cases.py. Of a run's
       software `not_known` says so; most others are refused in a file that is given (fields.py).
"""
