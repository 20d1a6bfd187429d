package fairqueue

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// check proves what is promised about the lists of a queue.
func check[T comparable](t *testing.T, q *Queue[T]) {
	t.Helper()
	items, waiting, idle := 0, 0, 0
	for i, l := range q.levels {
		if i > 0 {
			require.Less(t, l.priority, q.levels[i-1].priority)
		}
		require.NotEmpty(t, l.tenants, "a level without tenants is gone")
		require.Len(t, l.tenants, len(l.waiting)+len(l.idle))
		require.True(t, slices.IsSortedFunc(l.waiting, sooner))
		require.True(t, slices.IsSortedFunc(l.idle, lighter))
		waiting, idle = waiting+len(l.waiting), idle+len(l.idle)
		for _, x := range l.waiting {
			require.NotEmpty(t, x.entries)
			require.True(t, slices.IsSortedFunc(x.entries, older))
			require.GreaterOrEqual(t, x.virtual, l.present())
			items += len(x.entries)
		}
		for _, x := range l.idle {
			require.Empty(t, x.entries)
			require.Greater(t, x.virtual, l.present(), "who would begin anew where it is is forgotten")
		}
	}
	require.Len(t, q.items, items)
	require.Equal(t, [2]int{waiting, idle}, [2]int{q.waiting, q.idle})
	require.LessOrEqual(t, idle, max(leastIdle, 4*waiting))
}

func order[T comparable](q *Queue[T]) []T { return slices.Collect(q.Each) }

func TestAnEmptyQueueHasNothing(t *testing.T) {
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

func TestPriorityGoesBeforeShareAndShareBeforeAge(t *testing.T) {
	var q Queue[string]
	low, high := Class{math.MinInt32, "a"}, Class{math.MaxInt32, "a"}
	for i, item := range []struct {
		name  string
		class Class
	}{
		{"oldest", low}, {"a1", Class{0, "a"}}, {"a2", Class{0, "a"}}, {"b1", Class{0, "b"}}, {"nameless", Class{}}, {"urgent", high},
		{"negative", Class{-1, "b"}},
	} {
		require.True(t, q.Push(item.name, item.class, uint64(i)))
		check(t, &q)
	}
	require.Equal(t, []string{"urgent", "a1", "a2", "b1", "nameless", "negative", "oldest"}, order(&q))
	q.Charge(Class{0, "a"}, 5)
	require.Equal(t, []string{"urgent", "b1", "nameless", "a1", "a2", "negative", "oldest"}, order(&q))
	oldest, _ := q.Oldest()
	require.Equal(t, "oldest", oldest)
	check(t, &q)
}

func TestWithinATenantAgeDecidesAndAmongEqualAgesArrival(t *testing.T) {
	var q Queue[string]
	for _, item := range []struct {
		name string
		age  uint64
	}{{"c", 7}, {"d", 7}, {"e", math.MaxUint64}, {"a", 0}, {"b", 3}} {
		require.True(t, q.Push(item.name, Class{}, item.age))
	}
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, order(&q))
	require.True(t, q.Remove("c"))
	require.True(t, q.Push("c", Class{}, 1))
	require.Equal(t, []string{"a", "c", "b", "d", "e"}, order(&q))
	check(t, &q)
}

func TestAnItemIsInTheQueueOnce(t *testing.T) {
	var q Queue[int]
	require.True(t, q.Push(1, Class{}, 1))
	require.False(t, q.Push(1, Class{5, "b"}, 0))
	require.Equal(t, 1, q.Len())
	require.True(t, q.Remove(1))
	require.False(t, q.Remove(1))
	require.Empty(t, q.levels, "nothing is remembered")
}

func TestNextSkipsAndLeavesWhatItShows(t *testing.T) {
	var q Queue[int]
	for i := range 6 {
		q.Push(i, Class{Tenant: string(rune('a' + i/3))}, uint64(i))
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

func TestWhoComesBackBeginsAtThePresentAndNotWithCredit(t *testing.T) {
	var q Queue[string]
	a, b := Class{Tenant: "a"}, Class{Tenant: "b"}
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
	q.Charge(b, 2) // it is behind by the item that is being served, and not by 1990
	require.Equal(t, []string{"a3", "b2"}, order(&q))
	check(t, &q)
}

func TestWhoLeavesAndComesBackKeepsItsDebt(t *testing.T) {
	var q Queue[string]
	a, b := Class{Tenant: "a"}, Class{Tenant: "b"}
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

func TestWhereNobodyWaitsNothingIsHeldAgainstAnybody(t *testing.T) {
	var q Queue[string]
	q.Charge(Class{Tenant: "a"}, 1000)
	require.Empty(t, q.levels)
	q.Push("a", Class{Tenant: "a"}, 1)
	q.Push("b", Class{Tenant: "b"}, 2)
	require.Equal(t, []string{"a", "b"}, order(&q))
}

func TestChargesOfNothingChangeNothing(t *testing.T) {
	var q Queue[string]
	q.Push("a", Class{Tenant: "a"}, 1)
	q.Push("b", Class{Tenant: "b"}, 2)
	q.Charge(Class{Tenant: "a"}, 0)
	q.Charge(Class{Tenant: "a"}, math.MinInt)
	require.Equal(t, []string{"a", "b"}, order(&q))
}

func TestPrioritiesAreChargedApart(t *testing.T) {
	var q Queue[string]
	q.Push("a", Class{1, "a"}, 1)
	q.Push("b", Class{1, "b"}, 2)
	q.Push("c", Class{0, "a"}, 3)
	q.Push("d", Class{0, "b"}, 4)
	q.Charge(Class{1, "a"}, 5)
	require.Equal(t, []string{"b", "a", "c", "d"}, order(&q))
}

// Two tenants wait all the time, one with a hundred items and one with one. What they are charged differs by no more than an item.
func TestTenantsShareTokensWithinOneItem(t *testing.T) {
	const largest = 900
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var q Queue[int]
		served, next := [2]int{}, 0
		size := [2]int{1 + rng.IntN(largest), 1 + rng.IntN(largest)}
		push := func(tenant int) {
			next++
			q.Push(next*2+tenant, Class{Tenant: strconv.Itoa(tenant)}, uint64(next))
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
			for left := tokens; left > 0; { // little by little, as the work is done
				part := 1 + rng.IntN(left)
				q.Charge(Class{Tenant: strconv.Itoa(tenant)}, part)
				left -= part
			}
			served[tenant] += tokens
			push(tenant)
			check(t, &q)
			require.LessOrEqual(t, max(served[0]-served[1], served[1]-served[0]), largest)
		}
	}
}

func TestTenantsThatCameOnceAreForgotten(t *testing.T) {
	var q Queue[int]
	q.Push(-1, Class{Tenant: "waits"}, 0)
	for i := range 20 * leastIdle {
		class := Class{Priority: int32(i % 700), Tenant: strconv.Itoa(i)}
		q.Push(i, class, uint64(i))
		q.Remove(i)
		q.Charge(class, 10)
		q.Charge(Class{Tenant: strconv.Itoa(i)}, 10)
		require.LessOrEqual(t, q.idle, leastIdle)
	}
	check(t, &q)
	require.Len(t, q.levels, 1, "where nobody waits nobody is remembered")
	require.Contains(t, q.levels[0].tenants, strconv.Itoa(20*leastIdle-1))
	require.Contains(t, q.levels[0].tenants, strconv.Itoa(19*leastIdle), "those charged last are remembered")
	require.NotContains(t, q.levels[0].tenants, "0")
	q.Remove(-1)
	require.Zero(t, q.Len())
}

func TestVirtualTimeNeverOverflows(t *testing.T) {
	var q Queue[string]
	a, b := Class{Tenant: "a"}, Class{Tenant: "b"}
	q.Push("a", a, 1)
	q.Push("b", b, 2)
	l := q.levels[0]
	l.now = mostVirtual / 2
	for _, x := range l.waiting {
		x.virtual = mostVirtual / 2
	}
	q.Charge(a, 30)
	q.Charge(b, 20)
	require.Equal(t, []string{"b", "a"}, order(&q))
	require.Less(t, l.now, int64(100), "all times are shifted")
	q.Charge(b, 20)
	require.Equal(t, []string{"a", "b"}, order(&q), "the differences are as before")
	check(t, &q)
	for range 1 << 12 {
		q.Charge(a, math.MaxInt)
	}
	require.Equal(t, []string{"b", "a"}, order(&q))
	l.tenants["a"].virtual = mostVirtual
	q.Charge(a, math.MaxInt)
	require.Equal(t, int64(mostVirtual), l.tenants["a"].virtual)
	check(t, &q)
}

func BenchmarkPushChargeRemoveAmongTenThousand(b *testing.B) {
	var q Queue[int]
	for i := range 10_000 {
		q.Push(i, Class{Tenant: strconv.Itoa(i % 100)}, uint64(i))
	}
	age := uint64(10_000)
	for b.Loop() {
		item, _ := q.Next(nil)
		class := q.items[item].class
		q.Remove(item)
		q.Charge(class, 100)
		age++
		q.Push(item, class, age)
	}
}
