package sidecar

import "testing"

func TestWorkload(t *testing.T) {
	for pod, want := range map[string]string{
		"orders-7d9f8b6c5-x2k4q":     "orders",
		"web-front-6c5b7d8f9c-zzzzz": "web-front",
		"agent-x2k4q":                "agent",
		"db-0":                       "db",
		"db-12":                      "db",
		"orders":                     "orders",
		"my-hello":                   "my-hello", // vowels: a word
		"shop-web":                   "shop-web",
		"-0":                         "-0",
		"":                           "",
	} {
		if got := workload(pod); got != want {
			t.Errorf("%q belongs to %q, want %q", pod, got, want)
		}
	}
}
