package heap

const (
	// least is the garbage that may always pile up.
	least = 48 << 20
	// shareOfMore of what is alive beyond least may pile up besides.
	shareOfMore = 8
)

// Room is how many bytes of garbage may pile up beside so many that are alive.
func Room(live uint64) uint64 { return least + (max(live, least)-least)/shareOfMore }

// runtimeLeast is the heap that the runtime lets grow to at 100 percent, however little is alive; it scales with the percentage.
const runtimeLeast = 4 << 20

// percent is Room as the runtime wants it.
func percent(live uint64) int {
	live = max(live, runtimeLeast)
	return int(100 * Room(live) / live)
}
