// Which results of a search come first: pages that say how to do something, before the reference, before internals.
// Sphinx puts this in the place of its own scorer; the numbers that are not explained here are its own.
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    const found = Scorer.parts.find(([prefix]) => page.startsWith(prefix));
    return score + (found ? found[1] : 0);
  },

  // The first part that a page is in, and what its results gain or lose.
  parts: [
    ["install", 10],
    ["quickstart", 8],
    ["features", 4],
    ["guides/from-", 2],
    ["guides/", 8],
    ["concepts/", 6],
    ["operations/", 5],
    ["reference/python/scankv.sync.", -8], // the same as the asynchronous classes
    ["reference/", 0],
    ["glossary", 2],
    ["internals/", -8],
    ["decisions/", -10],
    ["benchmarks", -8],
    ["changelog", -15],
  ],

  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
