package enginetest

import "sync"

// kept are values that take long to make and that nobody changes, by key: one process checks an engine on several paths,
// and needs each of them once.
type kept[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V
}

// get returns the value of a key, made at the first call that succeeds.
func (k *kept[K, V]) get(key K, create func() (V, error)) (V, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if v, ok := k.values[key]; ok {
		return v, nil
	}
	v, err := create()
	if err != nil {
		return v, err
	}
	if k.values == nil {
		k.values = map[K]V{}
	}
	k.values[key] = v
	return v, nil
}
