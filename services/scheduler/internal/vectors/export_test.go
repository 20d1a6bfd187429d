package vectors

import "github.com/millrace/millrace/services/scheduler/internal/fleet"

// BytesOn returns the bytes of calls that run on a member.
func (v *Vectors) BytesOn(m *fleet.Member) int64 {
	v.indexes.mu.Lock()
	defer v.indexes.mu.Unlock()
	if l := v.indexes.loads[runOf(m)]; l != nil {
		return l.bytes.Load()
	}
	return 0
}
