"""English words that hold a sentence together and say little by themselves: they are never swapped."""

from __future__ import annotations

_ARTICLES = "a an the this that these those such same other another each every either neither both all any some no"
_PRONOUNS = """
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves who whom whose which what whoever whatever one oneself
    someone somebody something anyone anybody anything everyone everybody everything nobody nothing none
"""
_VERBS = """
    be am is are was were been being have has had having do does did done doing can could may might must shall should
    will would ought cannot
"""
_CONTRACTED = """
    isn't aren't wasn't weren't haven't hasn't hadn't don't doesn't didn't can't couldn't mustn't shan't shouldn't won't
    wouldn't i'm i've i'd i'll you're you've you'd you'll he's he'd he'll she's she'd she'll it's it'd it'll we're we've
    we'd we'll they're they've they'd they'll that's there's here's what's who's let's s t d m ll re ve n't
"""
_PREPOSITIONS = """
    of in on at by for from to into onto with without within about above across after against along among around as
    before behind below beneath beside between beyond down during except inside near off out outside over past per since
    through throughout till toward towards under until up upon via
"""
_CONJUNCTIONS = "and or but nor so yet if because although though while whereas unless than whether"
_ADVERBS = """
    not only very too also just then there here when where why how again once ever never now more most less least much
    many few own further almost always often quite rather still thus therefore however
"""

STOP_WORDS = frozenset(
    " ".join((_ARTICLES, _PRONOUNS, _VERBS, _CONTRACTED, _PREPOSITIONS, _CONJUNCTIONS, _ADVERBS)).split()
)


def is_stop_word(word: str) -> bool:
    """Case does not matter, and neither does the shape of an apostrophe."""
    return word.lower().replace("\u2019", "'") in STOP_WORDS
