package fairqueue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive does what Queue does with one list and full scans. It never forgets.
type naive struct {
	items  []stupidItem
	shares map[Flow]int64
	nows   map[int32]int64
}

type stupidItem struct {
	item int
	flow Flow
	age  uint64
}

// virtual returns a tenant's virtual time, which is at least the level's.
func (s *naive) virtual(c Flow) int64 { return max(s.shares[c], s.present(c.Priority)) }

func (s *naive) present(priority int32) int64 {
	at, waits := s.nows[priority], false
	minimum := int64(0)
	for _, x := range s.items {
		if x.flow.Priority == priority && (!waits || s.shares[x.flow] < minimum) {
			minimum, waits = s.shares[x.flow], true
		}
	}
	if waits {
		return min(at, minimum)
	}
	return at
}

func (s *naive) push(item int, flow Flow, age uint64) {
	s.shares[flow] = s.virtual(flow)
	s.items = append(s.items, stupidItem{item, flow, age})
}

func (s *naive) remove(i int) {
	c := s.items[i].flow
	s.nows[c.Priority] = max(s.nows[c.Priority], s.shares[c])
	s.items = slices.Delete(s.items, i, i+1)
}

func (s *naive) charge(flow Flow, tokens int) {
	began := s.virtual(flow)
	s.shares[flow] = began + int64(tokens)
	if !slices.ContainsFunc(s.items, func(x stupidItem) bool { return x.flow.Priority == flow.Priority }) {
		s.nows[flow.Priority] = max(s.nows[flow.Priority], s.shares[flow])
	}
}

func (s *naive) refund(flow Flow, tokens int) {
	if minimum := s.present(flow.Priority); s.shares[flow] > minimum {
		s.shares[flow] = max(s.shares[flow]-int64(tokens), minimum)
	}
}

func (s *naive) oldestOf(flow Flow) int {
	oldest := -1
	for i, x := range s.items {
		if x.flow == flow && (oldest < 0 || x.age < s.items[oldest].age) {
			oldest = i
		}
	}
	return oldest
}

func (s *naive) order() []int {
	at := make([]int, len(s.items))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		a, b := s.items[i], s.items[j]
		if a.flow == b.flow {
			return cmp.Or(cmp.Compare(a.age, b.age), cmp.Compare(i, j))
		}
		oldA, oldB := s.oldestOf(a.flow), s.oldestOf(b.flow)
		return cmp.Or(cmp.Compare(b.flow.Priority, a.flow.Priority), cmp.Compare(s.shares[a.flow], s.shares[b.flow]),
			cmp.Compare(s.items[oldA].age, s.items[oldB].age), cmp.Compare(oldA, oldB))
	})
	var order []int
	for _, i := range at {
		order = append(order, s.items[i].item)
	}
	return order
}

func TestQueueAgreesWithNaiveImplementation(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var q Queue[int]
		s := &naive{shares: map[Flow]int64{}, nows: map[int32]int64{}}
		flow := func() Flow { return Flow{int32(rng.IntN(3) - 1), []string{"", "a", "b", "c", "d"}[rng.IntN(5)]} }
		for i := range 400 {
			switch op := rng.IntN(12); {
			case op < 3 && len(s.items) < 24:
				c, age := flow(), uint64(rng.IntN(200))
				require.True(t, q.Push(i, c, age))
				s.push(i, c, age)
			case op < 6 && len(s.items) > 0:
				at := rng.IntN(len(s.items))
				if rng.IntN(2) == 0 {
					item, found := q.Next(nil)
					require.True(t, found)
					at = slices.IndexFunc(s.items, func(x stupidItem) bool { return x.item == item })
				}
				require.True(t, q.Remove(s.items[at].item))
				s.remove(at)
			case op < 8:
				c, tokens := flow(), rng.IntN(60)
				q.Refund(c, tokens)
				s.refund(c, tokens)
			default:
				c, tokens := flow(), 1+rng.IntN(50)
				q.Charge(c, tokens)
				s.charge(c, tokens)
			}
			check(t, &q)
			require.Equal(t, s.order(), slices.Collect(q.Each), "seed %d, operation %d", seed, i)
			require.Equal(t, len(s.items), q.Len())
			if oldest, found := q.Oldest(); found {
				ages := []uint64{}
				for _, x := range s.items {
					ages = append(ages, x.age)
				}
				require.Equal(t, slices.Min(ages), q.items[oldest].age)
			}
		}
	}
}
