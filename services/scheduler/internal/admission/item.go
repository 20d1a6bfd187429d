package admission

import (
	"time"

	"github.com/millrace/millrace/internal/fairqueue"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// class is where an item stands in the order.
type class = fairqueue.Class

// item is one request that waits.
type item struct {
	request  route.Request
	deadline time.Time // of its call; zero: none
	since    time.Time // when it came here
	until    time.Time // when it is refused if it still waits; zero: never
	passed   int       // how many that came after it in order took a place it might have had
	away     time.Time // since when no worker could serve it at all; zero: one can, or it was not tried
	full     bool      // when it was tried last, no worker had a place
	tight    bool      // then, a worker had a place, and it needs more
	reach    int64     // then, route.Choice.Reach
	returns  bool      // then, a worker that has the digest and the class it is pinned to was lost a moment ago, or is starting
	granted  chan grant
}

// grant is how waiting ends: with a lease or an error.
type grant struct {
	lease *Lease
	err   error
}

// held is whether its call had a place before.
func (i *item) held() bool { return i.request.Arrived != 0 }

// age is when its call came.
func (i *item) age() time.Time {
	if i.held() {
		return time.Unix(0, i.request.Arrived)
	}
	return i.since
}

func (i *item) class() class { return class{Priority: i.request.Priority, Tenant: i.request.Tenant} }
