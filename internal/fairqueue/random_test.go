package fairqueue

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// stupid does what a Queue does with one list and full scans. It never forgets.
type stupid struct {
	items  []stupidItem
	shares map[Class]int64
	nows   map[int32]int64
}

type stupidItem struct {
	item  int
	class Class
	age   uint64
}

// virtual is where a tenant stands: who has used less than the present is at the present.
func (s *stupid) virtual(c Class) int64 { return max(s.shares[c], s.present(c.Priority)) }

func (s *stupid) present(priority int32) int64 {
	at, waits := s.nows[priority], false
	least := int64(0)
	for _, x := range s.items {
		if x.class.Priority == priority && (!waits || s.shares[x.class] < least) {
			least, waits = s.shares[x.class], true
		}
	}
	if waits {
		return min(at, least)
	}
	return at
}

func (s *stupid) push(item int, class Class, age uint64) {
	s.shares[class] = s.virtual(class)
	s.items = append(s.items, stupidItem{item, class, age})
}

func (s *stupid) remove(at int) {
	c := s.items[at].class
	s.nows[c.Priority] = max(s.nows[c.Priority], s.shares[c])
	s.items = slices.Delete(s.items, at, at+1)
}

func (s *stupid) charge(class Class, tokens int) {
	began := s.virtual(class)
	s.shares[class] = began + int64(tokens)
	if !slices.ContainsFunc(s.items, func(x stupidItem) bool { return x.class.Priority == class.Priority }) {
		s.nows[class.Priority] = max(s.nows[class.Priority], s.shares[class])
	}
}

func (s *stupid) refund(class Class, tokens int) {
	if least := s.present(class.Priority); s.shares[class] > least {
		s.shares[class] = max(s.shares[class]-int64(tokens), least)
	}
}

func (s *stupid) oldestOf(class Class) int {
	oldest := -1
	for i, x := range s.items {
		if x.class == class && (oldest < 0 || x.age < s.items[oldest].age) {
			oldest = i
		}
	}
	return oldest
}

func (s *stupid) order() []int {
	at := make([]int, len(s.items))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int {
		a, b := s.items[i], s.items[j]
		if a.class == b.class {
			return cmp.Or(cmp.Compare(a.age, b.age), cmp.Compare(i, j))
		}
		oldA, oldB := s.oldestOf(a.class), s.oldestOf(b.class)
		return cmp.Or(cmp.Compare(b.class.Priority, a.class.Priority), cmp.Compare(s.shares[a.class], s.shares[b.class]),
			cmp.Compare(s.items[oldA].age, s.items[oldB].age), cmp.Compare(oldA, oldB))
	})
	var order []int
	for _, i := range at {
		order = append(order, s.items[i].item)
	}
	return order
}

func TestRandomScriptsAgreeWithTheStupidImplementation(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var q Queue[int]
		s := &stupid{shares: map[Class]int64{}, nows: map[int32]int64{}}
		class := func() Class { return Class{int32(rng.IntN(3) - 1), []string{"", "a", "b", "c", "d"}[rng.IntN(5)]} }
		for i := range 400 {
			switch op := rng.IntN(12); {
			case op < 3 && len(s.items) < 24:
				c, age := class(), uint64(rng.IntN(200))
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
				c, tokens := class(), rng.IntN(60)
				q.Refund(c, tokens)
				s.refund(c, tokens)
			default:
				c, tokens := class(), 1+rng.IntN(50)
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
