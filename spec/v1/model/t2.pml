byte obj[9];
init { byte w; if :: obj[(1 + ((w) < 2 -> (w) : 1))] == 0 -> obj[(1 + ((w < 2) -> (w) : 1))] = 1; obj[(1+((w < 2 -> w : 1)))] = 2 :: else fi }
