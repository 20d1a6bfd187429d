package fairqueue

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// check checks the invariants of a queue's lists.
func check[T comparable](t *testing.T, q *Queue[T]) {
	t.Helper()
	items, waiting, idle := 0, 0, 0
	for i, l := range q.levels {
		if i > 0 {
			require.Less(t, l.priority, q.levels[i-1].priority)
		}
		require.NotEmpty(t, l.tenants, "a level without tenants is gone")
		require.Len(t, l.tenants, len(l.waiting)+len(l.idle))
		require.True(t, slices.IsSortedFunc(l.waiting, byVirtualTime))
		require.True(t, slices.IsSortedFunc(l.idle, byVirtualTimeAndName))
		waiting, idle = waiting+len(l.waiting), idle+len(l.idle)
		for _, x := range l.waiting {
			require.NotEmpty(t, x.entries)
			require.True(t, slices.IsSortedFunc(x.entries, older))
			require.GreaterOrEqual(t, x.virtual, l.virtualTime())
			items += len(x.entries)
		}
		for _, x := range l.idle {
			require.Empty(t, x.entries)
			require.Greater(t, x.virtual, l.virtualTime(), "who would begin anew where it is is forgotten")
		}
	}
	require.Len(t, q.items, items)
	require.Equal(t, [2]int{waiting, idle}, [2]int{q.waiting, q.idle})
	require.LessOrEqual(t, idle, max(minIdle, 4*waiting))
}

func order[T comparable](q *Queue[T]) []T { return slices.Collect(q.Each) }

func TestEmptyQueue(t *testing.T) {
	var q Queue[int]
	_, found := q.Next(nil)
	require.False(t, found)
	_, found = q.Oldest()
	require.False(t, found)
	require.False(t, q.Remove(1))
	require.Zero(t, q.Len())
	require.Empty(t, order(&q))
	check(t, &q)
}

func TestPriorityThenShareThenAge(t *testing.T) {
	var q Queue[string]
	low, high := Flow{math.MinInt32, "a"}, Flow{math.MaxInt32, "a"}
	for i, item := range []struct {
		name string
		flow Flow
	}{
		{"oldest", low}, {"a1", Flow{0, "a"}}, {"a2", Flow{0, "a"}}, {"b1", Flow{0, "b"}}, {"nameless", Flow{}}, {"urgent", high},
		{"negative", Flow{-1, "b"}},
	} {
		require.True(t, q.Push(item.name, item.flow, uint64(i)))
		check(t, &q)
	}
	require.Equal(t, []string{"urgent", "a1", "a2", "b1", "nameless", "negative", "oldest"}, order(&q))
	q.Charge(Flow{0, "a"}, 5)
	require.Equal(t, []string{"urgent", "b1", "nameless", "a1", "a2", "negative", "oldest"}, order(&q))
	oldest, _ := q.Oldest()
	require.Equal(t, "oldest", oldest)
	check(t, &q)
}

func TestAgeThenArrivalWithinATenant(t *testing.T) {
	var q Queue[string]
	for _, item := range []struct {
		name string
		age  uint64
	}{{"c", 7}, {"d", 7}, {"e", math.MaxUint64}, {"a", 0}, {"b", 3}} {
		require.True(t, q.Push(item.name, Flow{}, item.age))
	}
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, order(&q))
	require.True(t, q.Remove("c"))
	require.True(t, q.Push("c", Flow{}, 1))
	require.Equal(t, []string{"a", "c", "b", "d", "e"}, order(&q))
	check(t, &q)
}

func TestPushRefusesDuplicates(t *testing.T) {
	var q Queue[int]
	require.True(t, q.Push(1, Flow{}, 1))
	require.False(t, q.Push(1, Flow{5, "b"}, 0))
	require.Equal(t, 1, q.Len())
	require.True(t, q.Remove(1))
	require.False(t, q.Remove(1))
	require.Empty(t, q.levels, "nothing is remembered")
}

func TestNextSkipsAndKeepsItems(t *testing.T) {
	var q Queue[int]
	for i := range 6 {
		q.Push(i, Flow{Tenant: string(rune('a' + i/3))}, uint64(i))
	}
	next, found := q.Next(func(i int) bool { return i < 4 })
	require.True(t, found)
	require.Equal(t, 4, next)
	_, found = q.Next(func(int) bool { return true })
	require.False(t, found)
	next, _ = q.Next(nil)
	require.Equal(t, 0, next)
	require.Equal(t, 6, q.Len())
}

func TestReturningTenantHasNoCredit(t *testing.T) {
	var q Queue[string]
	a, b := Flow{Tenant: "a"}, Flow{Tenant: "b"}
	for i, item := range []string{"a1", "a2", "a3"} {
		q.Push(item, a, uint64(i))
	}
	q.Push("b1", b, 3)
	q.Remove("b1")
	q.Charge(b, 10)
	for _, item := range []string{"a1", "a2"} {
		q.Remove(item)
		q.Charge(a, 1000)
	}
	q.Push("b2", b, 4)
	require.Equal(t, []string{"b2", "a3"}, order(&q))
	q.Charge(b, 999)
	require.Equal(t, []string{"b2", "a3"}, order(&q))
	q.Charge(b, 2) // it is one item behind, and not 1990
	require.Equal(t, []string{"a3", "b2"}, order(&q))
	check(t, &q)
}

func TestReturningTenantKeepsItsDebt(t *testing.T) {
	var q Queue[string]
	a, b := Flow{Tenant: "a"}, Flow{Tenant: "b"}
	q.Push("a1", a, 1)
	q.Push("b1", b, 2)
	q.Remove("a1")
	q.Charge(a, 100)
	q.Push("a2", a, 0)
	require.Equal(t, []string{"b1", "a2"}, order(&q))
	q.Charge(b, 99)
	require.Equal(t, []string{"b1", "a2"}, order(&q))
	q.Charge(b, 2)
	require.Equal(t, []string{"a2", "b1"}, order(&q))
}

func TestChargeWithoutWaitersIsForgotten(t *testing.T) {
	var q Queue[string]
	q.Charge(Flow{Tenant: "a"}, 1000)
	require.Empty(t, q.levels)
	q.Push("a", Flow{Tenant: "a"}, 1)
	q.Push("b", Flow{Tenant: "b"}, 2)
	require.Equal(t, []string{"a", "b"}, order(&q))
}

func TestEmptyChargesChangeNothing(t *testing.T) {
	var q Queue[string]
	q.Push("a", Flow{Tenant: "a"}, 1)
	q.Push("b", Flow{Tenant: "b"}, 2)
	q.Charge(Flow{Tenant: "a"}, 0)
	q.Charge(Flow{Tenant: "a"}, math.MinInt)
	require.Equal(t, []string{"a", "b"}, order(&q))
}

func TestPrioritiesAreChargedSeparately(t *testing.T) {
	var q Queue[string]
	q.Push("a", Flow{1, "a"}, 1)
	q.Push("b", Flow{1, "b"}, 2)
	q.Push("c", Flow{0, "a"}, 3)
	q.Push("d", Flow{0, "b"}, 4)
	q.Charge(Flow{1, "a"}, 5)
	require.Equal(t, []string{"b", "a", "c", "d"}, order(&q))
}

// TestTenantsShareTokensWithinOneItem has two tenants that always have items, one a hundred and one
// a single item. Their charges differ by one item at most.
func TestTenantsShareTokensWithinOneItem(t *testing.T) {
	const largest = 900
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var q Queue[int]
		served, next := [2]int{}, 0
		size := [2]int{1 + rng.IntN(largest), 1 + rng.IntN(largest)}
		push := func(tenant int) {
			next++
			q.Push(next*2+tenant, Flow{Tenant: strconv.Itoa(tenant)}, uint64(next))
		}
		for range 100 {
			push(0)
		}
		push(1)
		for range 3000 {
			item, _ := q.Next(nil)
			tenant := item % 2
			q.Remove(item)
			tokens := 1 + rng.IntN(size[tenant])
			for left := tokens; left > 0; { // in parts, as the work is done
				part := 1 + rng.IntN(left)
				q.Charge(Flow{Tenant: strconv.Itoa(tenant)}, part)
				left -= part
			}
			served[tenant] += tokens
			push(tenant)
			check(t, &q)
			require.LessOrEqual(t, max(served[0]-served[1], served[1]-served[0]), largest)
		}
	}
}

func TestIdleTenantsAreForgotten(t *testing.T) {
	var q Queue[int]
	q.Push(-1, Flow{Tenant: "waits"}, 0)
	for i := range 20 * minIdle {
		flow := Flow{Priority: int32(i % 700), Tenant: strconv.Itoa(i)}
		q.Push(i, flow, uint64(i))
		q.Remove(i)
		q.Charge(flow, 10)
		q.Charge(Flow{Tenant: strconv.Itoa(i)}, 10)
		require.LessOrEqual(t, q.idle, minIdle)
	}
	check(t, &q)
	require.Len(t, q.levels, 1, "where nobody waits nobody is remembered")
	require.Contains(t, q.levels[0].tenants, strconv.Itoa(20*minIdle-1))
	require.Contains(t, q.levels[0].tenants, strconv.Itoa(19*minIdle), "those charged last are remembered")
	require.NotContains(t, q.levels[0].tenants, "0")
	q.Remove(-1)
	require.Zero(t, q.Len())
}

func TestVirtualTimeNeverOverflows(t *testing.T) {
	var q Queue[string]
	a, b := Flow{Tenant: "a"}, Flow{Tenant: "b"}
	q.Push("a", a, 1)
	q.Push("b", b, 2)
	l := q.levels[0]
	l.lastServed = maxVirtual / 2
	for _, x := range l.waiting {
		x.virtual = maxVirtual / 2
	}
	q.Charge(a, 30)
	q.Charge(b, 20)
	require.Equal(t, []string{"b", "a"}, order(&q))
	require.Less(t, l.lastServed, int64(100), "all times are shifted")
	q.Charge(b, 20)
	require.Equal(t, []string{"a", "b"}, order(&q), "the differences are as before")
	check(t, &q)
	for range 1 << 12 {
		q.Charge(a, math.MaxInt)
	}
	require.Equal(t, []string{"b", "a"}, order(&q))
	l.tenants["a"].virtual = maxVirtual
	q.Charge(a, math.MaxInt)
	require.Equal(t, int64(maxVirtual), l.tenants["a"].virtual)
	check(t, &q)
}

func BenchmarkQueueOfTenThousand(b *testing.B) {
	var q Queue[int]
	for i := range 10_000 {
		q.Push(i, Flow{Tenant: strconv.Itoa(i % 100)}, uint64(i))
	}
	age := uint64(10_000)
	for b.Loop() {
		item, _ := q.Next(nil)
		flow := q.items[item].flow
		q.Remove(item)
		q.Charge(flow, 100)
		age++
		q.Push(item, flow, age)
	}
}
