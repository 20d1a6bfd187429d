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
	since    time.Time // when it came
	passed   int       // how many that came after it in order took a place it might have had
	away     time.Time // since when no worker could serve it at all; zero: one can, or it was not tried
	full     bool      // when it was tried last, no worker had a place
	tight    bool      // then, a worker had a place, and it needs more
	granted  chan grant
}

// grant is how waiting ends: with a lease or an error.
type grant struct {
	lease *Lease
	err   error
}

func (i *item) class() class { return class{Priority: i.request.Priority, Tenant: i.request.Tenant} }
