"""The list of mutations that change nothing belongs to the code as it is."""

from tests.mutations import equivalents, mutations


def test_every_mutation_that_is_listed_as_none_can_still_be_made():
    listed = equivalents()
    made = {
        (each.file, each.text, each.before, each.after)
        for file in {file for file, *_ in listed}
        for each in mutations(file)
    }
    assert listed <= made
