package enginetest

import "sync"

// kept caches read-only values that are expensive to make, by key, because one process checks an
// engine on several paths.
type kept[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V
}

// get returns the value of a key. The first call that succeeds makes it.
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
