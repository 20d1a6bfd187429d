package replay

// row is one measurement: the trace, with or without reuse, and who selects the workers.
type row struct {
	name       string
	unique     bool
	schedulers int // 0: the rule selects
	rule       rule
}

// Names of rows.
const (
	oneScheduler   = "trace/scheduler"
	twoSchedulers  = "trace/two-schedulers"
	traceInTurn    = "trace/round-robin"
	traceLeast     = "trace/least-loaded"
	traceOracle    = "trace/oracle"
	uniqueOne      = "unique/scheduler"
	uniqueLeast    = "unique/least-loaded"
	comparisonsRow = "compared"
)

var rows = []row{
	{name: oneScheduler, schedulers: 1},
	{name: twoSchedulers, schedulers: 2},
	{name: traceInTurn, rule: roundRobin},
	{name: traceLeast, rule: leastLoaded},
	{name: traceOracle, rule: oracle},
	{name: uniqueOne, unique: true, schedulers: 1},
	{name: uniqueLeast, unique: true, rule: leastLoaded},
}

// RowNames returns the names of all rows.
func RowNames() []string {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.name
	}
	return names
}

// requests returns the trace of the row.
func (r row) requests(of []Request) []Request {
	if r.unique {
		return Unique(of)
	}
	return of
}

// rule selects a worker from the benchmark's own counts.
type rule int

// roundRobin uses the workers in turn. leastLoaded selects the worker with the fewest outstanding
// tokens (prompts without an answer, and tokens to come), as a scheduler without prefixes does, but
// from exact counts of its own calls. oracle selects the worker with the fewest prompt tokens to
// compute before the first token of the call: the longest prefix wins unless its worker has more
// work queued than the prefix saves.
const (
	roundRobin rule = iota
	leastLoaded
	oracle
)

// dispatcher applies a rule. It is not safe for concurrent use.
type dispatcher struct {
	rule  rule
	tasks []int64 // by worker: outstanding tokens
	books []*book // by worker; only for the oracle
	next  int     // worker that wins ties, advanced by each call
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

// ticket is a call that was sent to a worker.
type ticket struct {
	worker         int
	prompt, output int64 // tokens that the worker still has to compute
	entry          *entry
}

// found returns how many tokens of the prompt are cached according to the book, and false without
// a book.
func (t *ticket) found() (tokens int, ok bool) {
	if t.entry == nil {
		return 0, false
	}
	return t.entry.found, true
}

// send selects the worker of a call and counts the call.
func (d *dispatcher) send(j *job) *ticket {
	t := &ticket{worker: d.choose(j), prompt: int64(len(j.ids)), output: int64(j.output)}
	if d.books != nil {
		t.entry = d.books[t.worker].begin(j)
		t.prompt, t.output = t.prompt-int64(t.entry.found), 0
	}
	d.tasks[t.worker] += t.prompt + t.output
	return t
}

func (d *dispatcher) choose(j *job) int {
	d.next++
	n := len(d.tasks)
	best := d.next % n
	if d.rule == roundRobin {
		return best
	}
	for i := 1; i < n; i++ {
		if w := (d.next + i) % n; d.cost(w, j) < d.cost(best, j) {
			best = w
		}
	}
	return best
}

// cost returns the number of tokens that a worker has to compute before the first token of the
// call.
func (d *dispatcher) cost(w int, j *job) int64 {
	cost := d.tasks[w]
	if d.books != nil {
		cost -= int64(min(d.books[w].longest(j.names)*j.block, len(j.ids)))
	}
	return cost
}

// received subtracts n tokens of an answer, and the prompt with the first of them.
func (d *dispatcher) received(t *ticket, n int) {
	done := t.prompt + min(int64(n), t.output)
	t.prompt, t.output = 0, t.output-min(int64(n), t.output)
	d.tasks[t.worker] -= done
}

// end subtracts the rest of a call.
func (d *dispatcher) end(t *ticket) {
	d.tasks[t.worker] -= t.prompt + t.output
	if t.entry != nil {
		d.books[t.worker].end(t.entry)
	}
}
