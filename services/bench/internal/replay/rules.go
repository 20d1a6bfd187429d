package replay

// rule says which worker a call goes to, by what the benchmark itself knows.
type rule int

// roundRobin takes the workers in turn. leastLoaded takes the one with the fewest outstanding tokens, as a scheduler that knows no
// prefixes does: prompts without an answer, and tokens to come; but of calls of its own alone, so that its counts are exact.
// oracle takes the one that has the fewest prompt tokens to compute before the first token, those of the call itself included: the
// longest prefix wins unless its worker is behind by more than the prefix saves.
const (
	roundRobin rule = iota
	leastLoaded
	oracle
)

// dispatcher applies a rule. It is not safe for concurrent use.
type dispatcher struct {
	rule  rule
	tasks []int64 // by worker: outstanding tokens
	books []*book // by worker; the oracle's alone
	turn  int     // breaks ties, so that equals are taken in turn
}

func newDispatcher(r rule, workers, cacheTokens int) *dispatcher {
	d := &dispatcher{rule: r, tasks: make([]int64, workers)}
	if r == oracle {
		for range workers {
			d.books = append(d.books, newBook(cacheTokens))
		}
	}
	return d
}

// ticket is a call that was given to a worker.
type ticket struct {
	worker         int
	prompt, output int64 // tokens that its worker still owes
	entry          *entry
}

// found is how many tokens of its prompt the book says are cached; false: there is no book.
func (t *ticket) found() (tokens int, ok bool) {
	if t.entry == nil {
		return 0, false
	}
	return t.entry.found, true
}

// give gives a call to a worker.
func (d *dispatcher) give(j *job) *ticket {
	t := &ticket{worker: d.choose(j), prompt: int64(len(j.ids)), output: int64(j.output)}
	if d.books != nil {
		t.entry = d.books[t.worker].begin(j)
		t.prompt, t.output = t.prompt-int64(t.entry.found), 0
	}
	d.tasks[t.worker] += t.prompt + t.output
	return t
}

func (d *dispatcher) choose(j *job) int {
	d.turn++
	n := len(d.tasks)
	best := d.turn % n
	if d.rule == roundRobin {
		return best
	}
	for i := 1; i < n; i++ {
		if w := (d.turn + i) % n; d.cost(w, j) < d.cost(best, j) {
			best = w
		}
	}
	return best
}

// cost is what is ahead of the call's first token on a worker, in tokens.
func (d *dispatcher) cost(w int, j *job) int64 {
	cost := d.tasks[w]
	if d.books != nil {
		cost -= int64(min(d.books[w].longest(j.names)*j.block, len(j.ids)))
	}
	return cost
}

// got takes n tokens of an answer off, and the prompt with the first of them.
func (d *dispatcher) got(t *ticket, n int) {
	done := t.prompt + min(int64(n), t.output)
	t.prompt, t.output = 0, t.output-min(int64(n), t.output)
	d.tasks[t.worker] -= done
}

// end takes off what is left.
func (d *dispatcher) end(t *ticket) {
	d.tasks[t.worker] -= t.prompt + t.output
	if t.entry != nil {
		d.books[t.worker].end(t.entry)
	}
}
