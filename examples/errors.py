"""A value that is not valid is one error, with the field, and nothing is written."""

import sotto

try:
    sotto.run("quickstart", privacy={"mechanism": "magic"})
except sotto.Error as error:
    print("field:", error.field)
    print("sentence:", error)
