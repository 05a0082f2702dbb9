"""What only the command line calls: one module for each topic of `finops`.

Belongs here: running hours in this process, and showing, explaining, checking, closing and exporting what is stored.
Does not: rules (`accounting`), SQL and files (`resources`), and the options of a command (`cli`).
"""
